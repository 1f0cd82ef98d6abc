"""Which files' tests run in a guest that they share (`vm/conftest.py`), and so in one worker."""

FILES = {
    "shared_guest": (
        "acc_cli",
        "accelerator_lines",
        "admin_verbs",
        "docs_in_a_guest",
        "drive",
        "extensions",
        "faults",
        "io_verbs",
        "log_verbs",
    ),
    "computational_guest": (
        "computational_hosts",
        "compute_programs",
        "key_value",
        "memory_bar",
        "memory_namespaces",
    ),
}
"""By the guest's fixture."""

SHARED_GUESTS = {
    f"tests/vm/test_{name}.py": guest for guest, names in FILES.items() for name in names
}
"""The fixture of each file."""
