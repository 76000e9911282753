"""The connector to SGLang's HiCache: imports sglang and torch, and nothing else of the package imports it."""
