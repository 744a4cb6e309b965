"""Networks that read text: lines of every width and any number of them, through one executable."""
