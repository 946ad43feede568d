"""What runs under sanitizers: programs in C++, and the tests that run them."""
