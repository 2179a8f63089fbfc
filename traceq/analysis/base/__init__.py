"""What every analysis builds on: steady-state steps, idle gaps, who owns a kernel."""
