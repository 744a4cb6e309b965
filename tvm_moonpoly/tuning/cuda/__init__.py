"""The offline stage for CUDA.

What can be known without a GPU: `dry_run` compiles and judges candidates, `computed` makes a log of
them, `dry_search` searches by computed costs. With one: `search` proposes tiles, `gpu_stage` goes
over all forms and sizes of blocks, `bench` keeps what is known of each candidate, `device` measures
the launches that `tasks` lists, `fit` and `measured` turn times into a log's costs. By files:
`proposals` go out, `results` come back.
"""
