"""What runs inside a sandbox: standard library only, and nothing that a program may not see."""
