"""How the tests of every folder are run: what each of the plugins is for."""

pytest_plugins = ["no_skips", "leftovers", "costs", "tiers", "workers", "progress", "steps"]
