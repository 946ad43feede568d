"""The measurement of a case: implementations, samplers, worker processes, and the record of the machine."""
