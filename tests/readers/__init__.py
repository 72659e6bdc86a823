"""Second judges that read messages as other programs do: what passes must mean to all of them what was judged."""
