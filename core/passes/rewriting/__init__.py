"""What passes rewrite with: the editor of a graph, rules and their engine, questions about constants."""
