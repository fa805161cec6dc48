"""The command `python -m bench`. Processes that a benchmark starts import this file, but nothing through it."""

if __name__ == "__main__":
    from .runner import main

    main()
