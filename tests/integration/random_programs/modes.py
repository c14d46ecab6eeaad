"""How often each kind of line comes, by the mode of a program."""

MODES = {
    "mixed": {
        **{"unary": 10, "pure": 14, "views": 16, "binary": 14, "products": 8},
        **{"indexing": 7, "in place": 18, "out": 6, "lists": 7, "autograd": 7},
        **{"others": 14, "training": 4, "settings": 5, "native": 2},
        "operators": 12,
    },
    "views": {
        **{"unary": 3, "pure": 4, "views": 24, "binary": 6, "indexing": 6},
        **{"in place": 28, "out": 8, "lists": 8, "others": 8, "settings": 5},
        "native": 2,
    },
    "gradients": {
        **{"unary": 5, "pure": 6, "views": 8, "binary": 6, "products": 6},
        **{"in place": 10, "autograd": 24, "training": 12, "others": 6},
        **{"settings": 5, "lists": 4},
    },
    "operators": {
        **{"unary": 3, "pure": 4, "views": 5, "binary": 4, "in place": 6},
        **{"others": 4, "settings": 4, "operators": 60},
    },
}
