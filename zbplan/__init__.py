"""The shared language of zbplan: profiles, problems, placements, plans, and what judges them."""
