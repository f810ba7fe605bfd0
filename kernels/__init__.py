"""What the benches launch: Triton kernels and their torch counterparts; each file can be read and reused alone."""
