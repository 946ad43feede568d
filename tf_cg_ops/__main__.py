"""`python -m tf_cg_ops`: the program `tf-cg-ops`, which itself parses its arguments sooner."""

import sys

import tf_cg_ops_cli

if __name__ == "__main__":
    sys.exit(tf_cg_ops_cli.main())
