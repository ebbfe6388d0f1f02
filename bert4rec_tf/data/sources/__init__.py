"""Where data come from: the known data sets, downloads, and made-up catalogues."""
