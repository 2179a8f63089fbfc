"""Files through which agents and launcher communicate, for both processes."""
