"""How a case is measured: implementations, samplers, worker processes, and the record of the machine."""
