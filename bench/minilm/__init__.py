"""The main job: a real sentence-embedding model of dynamic shape, through one executable."""
