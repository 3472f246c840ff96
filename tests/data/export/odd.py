MODELS={}
def make_all(d,m): pass
