"""Tests that third parties can run on their own filters, parts and routers."""
