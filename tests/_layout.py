"""Modules of the package, from the bottom to the top, and the modules that each may import."""

RULES: dict[str, set[str]] = {
    "_checks": set(),
    "_files": set(),
    "_forks": {"_checks"},
    "activations": {"_checks"},
    "kernels": {"activations", "_checks", "_files"},
    "functional": {"kernels", "activations", "_checks"},
    "transforms": {"functional", "activations", "_checks"},
    "nn": {"transforms", "functional", "_checks"},
    "flows": {"kernels", "nn", "transforms", "functional", "activations", "_checks"},
    "training": {"flows", "kernels", "_checks", "_files"},
    "_model_file": {"_checks", "_files"},
    "io": {"_checks", "_files"},
    "datasets": {"_checks"},
    "tabular": {"_model_file", "_forks", "training", "flows", "kernels", "activations", "_checks", "_files"},
    "serialization": {"tabular", "_model_file", "flows", "training", "_checks", "_files"},
    "report": {"tabular", "training", "_checks", "_files"},
    "testing": {"functional", "_checks"},
    "__init__": set(),  # it imports on first use, by names in variables
}
RULES["cli"] = set(RULES) - {"__init__"}
RULES["__main__"] = {"cli"}
