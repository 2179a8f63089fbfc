"""Both processes: the files through which agents and launcher talk to each other."""
