"""Where data come from: the known data sets, downloads, archives, and made-up catalogues."""
