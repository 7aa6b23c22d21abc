"""Vocabularies and chat templates as the metadata of a GGUF file describe them.

metadata --> Vocabulary --> one of: byte_pair, sentence_piece, unigram, word_piece
                 |                        |
text --specials--+--- pieces of text -----+--> ids --> bytes --> text
"""
