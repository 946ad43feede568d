"""Sources that are compiled together, as build_ops/sources.py says."""

load("//bazel:sources.bzl", "UNITS")

def units(sources):
    """Returns what is compiled; the sources that it includes are those of `merged`."""
    names = []
    for name, folders in UNITS.items():
        together = [source for source in sources if source.rpartition("/")[0] in folders]
        if together:
            names.append("units/%s.cc" % name)
            native.genrule(
                name = "unit_" + name,
                outs = ["units/%s.cc" % name],
                cmd = "printf '#include \"%%s\"\\n' %s >$@" % " ".join(together),
            )
    alone = [source for source in sources if source not in merged(sources)]
    return names + alone

def merged(sources):
    """Returns those of the sources that are in folders whose sources are compiled together."""
    folders = [folder for together in UNITS.values() for folder in together]
    return [source for source in sources if source.rpartition("/")[0] in folders]
