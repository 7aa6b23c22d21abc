"""Tokenizers and chat templates, built from the metadata of a GGUF file.

metadata --> Vocabulary --> one of: byte_pair, sentence_piece, unigram, word_piece
                 |                        |
text --specials--+--- pieces of text -----+--> ids --> bytes --> text
"""
