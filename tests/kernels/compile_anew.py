"""Compiles each kernel of kernels/compiling.py anew and from the cache, without a GPU; prints what came of it.

In a process of its own, because the tests beside it interpret the kernels and Triton decides that at import.
"""

import json
import sys

from kernels import compiling

if __name__ == "__main__":
    told = {}
    for kernel in compiling.KERNELS:
        with compiling.Compiler(kernel, (9, 0)) as compiler:
            steps = [compiler.holds()]
            first = compiler.compile()
            steps.append(compiler.holds())
            second = compiler.compile()
            compiler.forget()
            steps.append(compiler.holds())
            again = compiler.compile()
        is_same = first == second == again
        told[kernel] = [steps, is_same, first[:4] == compiling.ELF, compiler.holds()]
    sys.stdout.write(json.dumps(told))
