"""The HiCache storage backend of SGLang. Modules that import sglang or torch say so; importing this one does not."""
