"""What is kept between runs, below AIRLOCK_HOME: environments, models; and the tools run in them."""
