"""From the configuration's plugins and profiles to the profile that decides."""
