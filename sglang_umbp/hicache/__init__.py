"""The SGLang connector. The only part of the package that imports sglang or torch; nothing outside it imports this."""
