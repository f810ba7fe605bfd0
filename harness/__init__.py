"""ofpeak: how much of a GPU its owner gets, beside what the data sheet promises."""

__version__ = "0.1.0"
