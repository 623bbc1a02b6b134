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
  main { display: grid; gap: 1.5rem; grid-template-columns: repeat(<?= count($shops) ?>, minmax(0, 1fr)) }
  section { border: 1px solid var(--line); border-radius: .5rem; padding: 1rem }
  h1 { font-size: 1.4rem } h2 { font-size: 1.15rem; margin: 0 } h3 { font-size: 1rem; margin-bottom: 0 }
  label { margin-right: .75rem } button, select, input { font: inherit; max-width: 100% }
  form { margin: .75rem 0 } form p { margin: .5rem 0 }
  code { font-size: .85em; overflow-wrap: anywhere }
  table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums }
  th { text-align: left; font-weight: 600 }
  tr:target { outline: 2px solid var(--good) }
  td, th { border-bottom: 1px solid var(--line); padding: .2rem .5rem .2rem 0; vertical-align: top }
  td small { opacity: .75; font-weight: 400 }
  .again, .refused { color: var(--bad); font-weight: 600 } .replayed { color: var(--good); font-weight: 600 }
  .executed p { margin: .25rem 0 }
  .answers { list-style: none; margin: .25rem 0; padding: 0; font-size: .9rem; min-height: 1.5em }
  .answers li { margin: .25rem 0 } .answers button { margin: .25rem 0 }
  .answers span { display: block; font-weight: 400 }
  /* side by side on a phone, too */
  @media (max-width: 44rem) {
    body { margin: 1rem auto; padding: 0 .5rem; font-size: 15px }
    main { gap: .5rem } section { padding: .5rem } h1 { margin: .5rem 0 }
    section label, section button { display: block; width: 100%; box-sizing: border-box; margin: .4rem 0 }
    select, input { width: 100%; box-sizing: border-box }
    table { font-size: .85rem } .at, .receipt { display: none }
  }
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
  <ul class="answers"></ul>
  <h3>Executed</h3>
<?php
    $orders = executed($shop);
    $doubles = doubles($orders);
?>
  <div class="executed">
    <p<?= $doubles ? ' class="again"' : '' ?>><?= count($orders) ?> executed<?=
       $doubles ? ', ' . count($doubles) . ' of them a second time' : '' ?>
    <table>
      <thead><tr><th>#<th class="at">at<th>item<th>charged<th class="receipt">receipt</thead>
<?php foreach (array_reverse($orders) as $order): $again = isset($doubles[$order['id']]) ?>
      <tr id="order-<?= $order['id'] ?>"<?= $again ? ' class="again"' : '' ?>><?=
          "<td>$order[id]<td class=\"at\">$order[at]<td>$order[quantity] $order[item]",
          $again ? ', again!' : '',
          $order['from'] ? " <small>from the $order[from]</small>" : '',
          "<td>$order[charged]<td class=\"receipt\">$order[receipt]" ?>

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

/* A new page view has a new key; what was chosen stays. */
function another(form) {
    const button = document.createElement('button');

    button.textContent = 'Make it a new order';
    button.addEventListener('click', () => {
        sessionStorage.setItem('chosen', JSON.stringify([form.item.value, form.quantity.value]));
        location.reload();
    });

    return button;
}

const chosen = JSON.parse(sessionStorage.getItem('chosen'));
sessionStorage.removeItem('chosen');

for (const section of document.querySelectorAll('section')) {
    const shop = section.dataset.shop;
    const form = section.querySelector('form');

    if (chosen) {
        [form.item.value, form.quantity.value] = chosen;
    }

    async function submit() {
        const order = { item: form.item.value, quantity: Number(form.quantity.value) };
        const line = document.createElement('li');
        const began = performance.now();

        section.querySelector('.answers').prepend(line);
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
            line.className = replayed ? 'replayed' : answer.ok ? '' : 'refused';

            /* the key of this page view is another order's */
            if (answer.status === 409) {
                line.append(Object.assign(document.createElement('span'), {
                    textContent: body.detail,
                }), another(form));
            }
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
