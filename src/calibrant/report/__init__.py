"""What people look at: the verdict in a sentence, terminal tables, figures, the HTML report."""
