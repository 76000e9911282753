"""`sglang-umbp doctor`: what a bug report should say about the machine and the installation."""
