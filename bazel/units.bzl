"""Sources that are compiled as one, as build_ops/sources.py says."""

load("//bazel:sources.bzl", "MERGED")

def units(sources):
    """Returns what is compiled; the sources that it includes are those of `merged`."""
    by_folder = {}
    for source in merged(sources):
        by_folder.setdefault(source.rpartition("/")[0], []).append(source)
    for folder, together in by_folder.items():
        native.genrule(
            name = folder.replace("/", "-"),
            outs = ["units/%s.cc" % folder.replace("/", "-")],
            cmd = "printf '#include \"%%s\"\\n' %s >$@" % " ".join(together),
        )
    alone = [source for source in sources if source not in merged(sources)]
    return ["units/%s.cc" % folder.replace("/", "-") for folder in by_folder] + alone

def merged(sources):
    """Returns those of the sources that are in folders of which each is compiled as one."""
    return [source for source in sources if source.rpartition("/")[0] in MERGED]
