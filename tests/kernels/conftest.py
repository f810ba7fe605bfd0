"""Interprets the kernels on the CPU: must run before any test module imports them."""

from kernels import interpreter

interpreter.enable()
