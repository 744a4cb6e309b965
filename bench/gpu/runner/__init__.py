"""What runs on the machine with the GPU: of this package only what is in the bundle.

Imports run one way: `supervise` and `parts` over `correct`, `tasks`, `speed`, `plans`, over
`timing`, `operands`, `reference`, over `device` and `bundled`, over `numbers`.
"""
