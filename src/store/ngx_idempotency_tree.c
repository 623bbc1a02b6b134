
/*
 * Red-black trees of what is told by a digest: of records by their token, and
 * of quotas by their value.  All of it runs with the zone's lock held.
 */


#include "ngx_idempotency_shm.h"


/* what records and quotas begin with: neither compiles otherwise */

typedef struct {
    ngx_rbtree_node_t  node;
    u_char             digest[NGX_IDEMPOTENCY_DIGEST_LEN];
} tree_node_t;

typedef char  ngx_idempotency_tree_fits_t[
    (offsetof(ngx_idempotency_record_t, token) == offsetof(tree_node_t, digest)
     && offsetof(ngx_idempotency_quota_t, value)
        == offsetof(tree_node_t, digest))
    ? 1 : -1];


static void tree_make(ngx_rbtree_t *tree, ngx_idempotency_shm_t *shm,
    ngx_rbtree_node_t *root);
static void tree_insert_value(ngx_rbtree_node_t *temp,
    ngx_rbtree_node_t *node, ngx_rbtree_node_t *sentinel);


ngx_rbtree_node_t *
ngx_idempotency_tree_find(ngx_idempotency_shm_t *shm, ngx_rbtree_node_t *root,
    u_char *digest)
{
    ngx_int_t           rc;
    ngx_rbtree_key_t    key;
    ngx_rbtree_node_t  *node;

    key = (ngx_rbtree_key_t) ngx_idempotency_tree_key(digest);

    for (node = root; node != &shm->sh->sentinel; /* void */ ) {

        if (key != node->key) {
            node = (key < node->key) ? node->left : node->right;
            continue;
        }

        rc = ngx_memcmp(digest, ((tree_node_t *) node)->digest,
                        NGX_IDEMPOTENCY_DIGEST_LEN);

        if (rc == 0) {
            return node;
        }

        node = (rc < 0) ? node->left : node->right;
    }

    return NULL;
}


ngx_rbtree_node_t *
ngx_idempotency_tree_next(ngx_idempotency_shm_t *shm, ngx_rbtree_node_t *root,
    u_char *digest)
{
    ngx_uint_t          behind;
    ngx_rbtree_key_t    key;
    ngx_rbtree_node_t  *node, *next;

    next = NULL;
    key = digest ? (ngx_rbtree_key_t) ngx_idempotency_tree_key(digest) : 0;

    for (node = root; node != &shm->sh->sentinel; /* void */ ) {

        if (digest == NULL) {
            behind = 1;

        } else if (node->key != key) {
            behind = (node->key > key);

        } else {
            behind = ngx_memcmp(((tree_node_t *) node)->digest, digest,
                                NGX_IDEMPOTENCY_DIGEST_LEN)
                     > 0;
        }

        if (behind) {
            next = node;
            node = node->left;

        } else {
            node = node->right;
        }
    }

    return next;
}


void
ngx_idempotency_tree_insert(ngx_idempotency_shm_t *shm,
    ngx_rbtree_node_t **root, ngx_rbtree_node_t *node)
{
    u_char        *digest;
    ngx_rbtree_t   tree;

    digest = ((tree_node_t *) node)->digest;
    node->key = (ngx_rbtree_key_t) ngx_idempotency_tree_key(digest);

    tree_make(&tree, shm, *root);
    ngx_rbtree_insert(&tree, node);
    *root = tree.root;
}


void
ngx_idempotency_tree_delete(ngx_idempotency_shm_t *shm,
    ngx_rbtree_node_t **root, ngx_rbtree_node_t *node)
{
    ngx_rbtree_t  tree;

    tree_make(&tree, shm, *root);
    ngx_rbtree_delete(&tree, node);
    *root = tree.root;
}


/* made anew each time: other processes may have our functions elsewhere */

static void
tree_make(ngx_rbtree_t *tree, ngx_idempotency_shm_t *shm,
    ngx_rbtree_node_t *root)
{
    tree->root = root;
    tree->sentinel = &shm->sh->sentinel;
    tree->insert = tree_insert_value;
}


static void
tree_insert_value(ngx_rbtree_node_t *temp, ngx_rbtree_node_t *node,
    ngx_rbtree_node_t *sentinel)
{
    ngx_int_t            rc;
    ngx_rbtree_node_t  **p;

    for ( ;; ) {

        if (node->key != temp->key) {
            p = (node->key < temp->key) ? &temp->left : &temp->right;

        } else {
            rc = ngx_memcmp(((tree_node_t *) node)->digest,
                            ((tree_node_t *) temp)->digest,
                            NGX_IDEMPOTENCY_DIGEST_LEN);

            p = (rc < 0) ? &temp->left : &temp->right;
        }

        if (*p == sentinel) {
            break;
        }

        temp = *p;
    }

    *p = node;
    node->parent = temp;
    node->left = sentinel;
    node->right = sentinel;
    ngx_rbt_red(node);
}


/* the token is a digest: any of its bytes make as good a key */

uint64_t
ngx_idempotency_tree_key(u_char *token)
{
    uint64_t  key;

    ngx_memcpy(&key, token, sizeof(key));

    return key;
}
