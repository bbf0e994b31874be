"""Language models as judges: templates, verdicts in their texts, and the endpoints that write them."""
