"""The only place that knows Ray: cluster, actors, and the handles that pipelines see."""
