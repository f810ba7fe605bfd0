"""Families import their kernels; here, as in tests/kernels, those are made for the interpreter."""

from kernels import interpreter

interpreter.enable()
