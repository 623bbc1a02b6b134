<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>Orders, <?= implode(' and ', $shops) ?></title>
<style>
  :root { --line: #8886; --bad: #c62828; --good: #2e7d32 }
  @media (prefers-color-scheme: dark) { :root { --bad: #ff8a80; --good: #81c784 } }
  body { font: 16px/1.5 system-ui, sans-serif; margin: 1.5rem auto; padding: 0 1rem;
         max-width: <?= count($shops) > 1 ? 72 : 38 ?>rem }
  main { display: grid; gap: 1.5rem;
         grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)) }
  section { border: 1px solid var(--line); border-radius: .5rem; padding: 1rem }
  h1 { font-size: 1.4rem } h2 { font-size: 1.15rem; margin: 0 } h3 { font-size: 1rem; margin-bottom: 0 }
  label { margin-right: .75rem } button, select, input { font: inherit }
  form { margin: .75rem 0 } form p { margin: .5rem 0 }
  code { font-size: .85em; overflow-wrap: anywhere }
  table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums }
  th { text-align: left; font-weight: 600 }
  tr:target { outline: 2px solid var(--good) }
  td, th { border-bottom: 1px solid var(--line); padding: .2rem .5rem .2rem 0 }
  .again { color: var(--bad); font-weight: 600 } .replayed { color: var(--good); font-weight: 600 }
  .executed p { margin: .25rem 0 }
  ol { margin: .25rem 0; padding-left: 1.5rem; font-size: .9rem; min-height: 1.5em }
</style>

<h1>One order, sent twice</h1>
<p>The card is charged for about <?= PAYMENT_SECONDS ?> s: click again meanwhile. This
   page view has one key, <code id="key"><?= $key ?></code>, so all it sends is
   the same order; <a href="">reload</a> for another one.
<?php if (count($shops) > 1): ?>
<p><button id="both" type="button">Double-click in both shops</button>
<?php endif ?>

<main>
<?php foreach ($shops as $shop): ?>
<section data-shop="<?= $shop ?>">
  <h2><a href="/<?= $shop ?>/"><?= ucfirst($shop) ?></a></h2>
  <form method="post" action="/<?= $shop ?>/orders?submission=<?= $key ?>">
    <p><label>Item <select name="item"><?= $options ?></select></label>
       <label>Quantity <input name="quantity" type="number" min="1" max="9" value="1" required></label>
    <p><button>Order now</button> <button type="button" class="twice">Double-click</button>
  </form>
  <h3>Answers</h3>
  <ol></ol>
  <h3>Executed</h3>
<?php
    $orders = executed($shop);
    $keys = array_column($orders, 'key');
    $again = fn ($n) => $keys[$n] !== null && array_search($keys[$n], $keys, true) < $n;
    $doubles = count(array_filter(array_keys($orders), $again));
?>
  <div class="executed">
    <p<?= $doubles ? ' class="again"' : '' ?>><?= count($orders) ?> executed<?=
       $doubles ? ", $doubles of them a second time" : '' ?>
    <table>
      <thead><tr><th>#<th>at<th>item<th>charged<th>receipt</thead>
<?php foreach ($orders as $n => $order): ?>
      <tr id="order-<?= $order['id'] ?>"<?= $again($n) ? ' class="again"' : '' ?>><td><?= implode('<td>', [
          $order['id'], $order['at'],
          "$order[quantity] $order[item]" . ($again($n) ? ', again!' : ''),
          $order['charged'], $order['receipt']]) ?>

<?php endforeach ?>
    </table>
  </div>
</section>
<?php endforeach ?>
</main>

<script>
/* With this script each click is a call of the JSON API, so that the answers can
   be shown here. Without it the form is posted as it stands, key in its action. */
'use strict';

const key = document.getElementById('key').textContent;
const pause = s => new Promise(done => setTimeout(done, s * 1000));

/* A client's whole share of the work: same key again, when told to come back. */
async function send(url, order) {
    for (;;) {
        const answer = await fetch(url, {
            method: 'POST',
            headers: { 'Content-Type': 'application/json', 'Idempotency-Key': key },
            body: JSON.stringify(order),
        });
        const again = answer.headers.get('Retry-After');

        if (answer.status != 409 || again === null) {
            return answer;
        }
        await pause(Number(again));
    }
}

for (const section of document.querySelectorAll('section')) {
    const shop = section.dataset.shop;
    const form = section.querySelector('form');

    async function submit() {
        const order = { item: form.item.value, quantity: Number(form.quantity.value) };
        const line = section.querySelector('ol').appendChild(document.createElement('li'));
        const began = performance.now();
        line.textContent = 'sent …';

        try {
            const answer = await send(`/${shop}/api/orders`, order);
            const body = await answer.json();
            const replayed = answer.headers.get('Idempotent-Replayed') === 'true';

            line.textContent = [
                answer.status,
                body.id ? `order ${body.id}, receipt ${body.receipt}` : body.title || body.error,
                replayed ? 'REPLAYED' : '',
                `${((performance.now() - began) / 1000).toFixed(2)} s`,
            ].filter(String).join(' · ');
            line.className = replayed ? 'replayed' : '';
        } catch (error) {
            line.textContent = error.message;
        }
        list();
    }

    /* the list as the server draws it */
    async function list() {
        const page = await (await fetch(`/${shop}/`)).text();
        const fresh = new DOMParser().parseFromString(page, 'text/html');
        section.querySelector('.executed').replaceWith(fresh.querySelector('.executed'));
    }

    form.addEventListener('submit', event => { event.preventDefault(); submit(); });
    section.querySelector('.twice').addEventListener('click', () => { submit(); submit(); });
    document.getElementById('both')?.addEventListener('click', () => { submit(); submit(); });

    (async () => { for (;; await pause(1)) { await list().catch(() => {}); } })();
}
</script>
