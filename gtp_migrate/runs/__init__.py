"""What a recipe starts: which launcher, with which resolvers, and which models it builds with which sizes."""
