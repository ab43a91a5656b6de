def run(bench, runtimes, roots):
    return [], [], []
