"""What a device needs beside the native core: kernels compiled at first use, and measured thresholds."""
