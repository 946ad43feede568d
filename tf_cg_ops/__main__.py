"""`python -m tf_cg_ops` runs the program `tf-cg-ops`, which starts faster under its own name."""

import sys

import tf_cg_ops_cli

if __name__ == "__main__":
    sys.exit(tf_cg_ops_cli.main())
