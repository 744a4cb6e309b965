"""Speed and correctness of tvm_moonpoly against its peers, measured side by side in one run."""
