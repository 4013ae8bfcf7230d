"""Modules of the package, from the bottom to the top, and the modules that each may import."""

RULES: dict[str, set[str]] = {
    "__init__": set(),  # it imports on first use, by names in variables
    "_checks": set(),
    "_files": set(),
    "_forks": {"_checks"},
    "_digest": set(),
    "_interrupts": set(),
    "_json_types": set(),
    "_sizes": set(),
    "activations": {"_checks"},
    "kernels": {"activations", "_checks", "_files"},
    "functional": {"kernels", "activations", "_checks"},
    "transforms": {"functional", "activations", "_checks"},
    "nn": {"transforms", "functional", "_checks"},
    "flows": {"_json_types", "kernels", "nn", "transforms", "functional", "activations", "_checks"},
    "training": {"_digest", "_interrupts", "_json_types", "flows", "nn", "kernels", "_checks", "_files"},
    "_model_file": {"__init__", "_digest", "_json_types", "_checks", "_files"},
    "io": {"_checks", "_files"},
    "datasets": {"_checks"},
    "tabular": {
        "_json_types",
        "_sizes",
        "_model_file",
        "_forks",
        "io",
        "training",
        "flows",
        "kernels",
        "activations",
        "_checks",
        "_files",
    },
    "serialization": {"_json_types", "_sizes", "tabular", "_model_file", "flows", "training", "_checks", "_files"},
    "verification": {"serialization", "tabular", "_model_file", "flows", "training", "_checks", "_files"},
    "batch": {"serialization", "tabular", "training", "io", "_checks"},
    "integrations": {"serialization", "tabular", "flows", "nn", "_checks"},
    "report": {"tabular", "training", "_checks", "_files"},
    "serve": {"batch", "report", "serialization", "tabular", "io", "training", "flows", "_checks"},
    "testing": {"functional", "_checks"},
}
RULES["cli"] = set(RULES) - {"__init__"}
RULES["__main__"] = {"cli"}

_TYPES = {"_arrays", "_random", "_text", "frames"}
TABULAR_RULES: dict[str, set[str]] = {
    "_arrays": set(),
    "_random": set(),
    "_text": set(),
    "frames": set(),
    "columns": {"_arrays", "_text"},
    "schema": {"columns", *_TYPES},
    "_flow": {"schema", *_TYPES},
    "_inputs": {"_flow", "schema", *_TYPES},
    "hints": {"schema", "columns", *_TYPES},
    "fitting": {"hints", "_inputs", "_flow", "schema", "columns", *_TYPES},
    "integrals": {"_flow", "_arrays"},  # features only: neither columns nor tables
    "queries": {"integrals", "fitting", "_inputs", "_flow", "schema", "columns", *_TYPES},
    "drift": {"fitting", "_inputs", "_flow", "schema", "columns", *_TYPES},
    "memorization": {"_inputs", "_flow", "schema", *_TYPES},
    "saving": {"drift", "fitting", "_flow", "schema", "_arrays"},
    "estimator": {"saving", "memorization", "drift", "queries", "fitting", "_flow", "columns", "frames"},
    "_clones": {"estimator", "_arrays"},
    "_saved": {"saving", "estimator", "schema"},
    "imputer": {"_saved", "_clones", "estimator", "queries", "schema", *_TYPES},
    "classifier": {"_saved", "_clones", "estimator", "saving", "queries", "fitting", "schema", "columns", *_TYPES},
    "regressor": {"_saved", "_clones", "estimator", "schema", *_TYPES},
}
"""The same for the folders and files of `elflow/tabular`."""
