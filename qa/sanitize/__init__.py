"""Programs in C++ and Python that run under sanitizers."""
