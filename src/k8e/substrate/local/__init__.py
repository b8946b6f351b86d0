"""Sandboxes on this machine: namespaces, cgroups, quota'd disks and OCI runtimes."""
